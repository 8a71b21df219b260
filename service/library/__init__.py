"""ggferry from Python: functions with the options of the command line, and the records they return."""
