"""What `sts new` writes: files of text in which NAME, Name_ and _name_ stand for the name that is given."""
