"""Samples -> rows of a trainer's format: one module a format, found by its name.

A module offers `FORM` ("jsonl" or "parquet") and `row(sample) -> dict`, whose keys are the columns.
Add a format by adding a module and a file of the same name in conf/export/.
"""
