"""A method is one page: student, teacher and loss."""
