"""From a picture or a recording in a file to what a tower reads, as transformers' processor of the family makes it."""
