"""SimSiam with a smoothed teacher: a method, its views, a dataset, an evaluation and two pipelines."""
