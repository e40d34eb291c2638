"""Lab: suggestions of ``foretell improve``, predicted first and measured afterwards."""
