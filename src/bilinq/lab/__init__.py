"""The lab: every figure of the paper redrawn, every claim judged, one report."""
