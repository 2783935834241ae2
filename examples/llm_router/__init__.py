"""An OpenAI-compatible router in front of several back ends, with `bilinq.Scheduler` inside. See README.md."""
