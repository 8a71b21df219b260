"""A plan is carried out: the run, one job, the engines. What a job does to a model is in workers."""
