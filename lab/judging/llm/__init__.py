"""Lab: language models as they are served, judged."""
