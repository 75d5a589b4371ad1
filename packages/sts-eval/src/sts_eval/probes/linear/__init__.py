"""Linear evaluation: its protocols, its classifiers and how they are trained."""
