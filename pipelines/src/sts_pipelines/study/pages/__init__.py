"""What a study is printed as: tables, figures and reports."""
