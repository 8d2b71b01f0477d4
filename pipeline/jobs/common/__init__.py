"""The parts that jobs share: inputs, results, plots, the Spark session, values of arguments.

Each job imports from here; nothing here knows a job.
"""
