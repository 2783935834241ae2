"""The lab: every figure of the paper redrawn from fresh runs, every claim judged from their numbers, one report.

Read in this order: `options`, `runs` (what is simulated and kept), `figure` and one file of `figures`, `claims`, `paper`.
"""
