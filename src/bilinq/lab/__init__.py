"""The lab: redraws every figure of the paper from fresh runs, judges every claim from their numbers, writes one report.

Read in this order: `figure` and one file of `figures`, `claims`, `paper`. Runs and their records are those of
`bilinq.experiments`.
"""
