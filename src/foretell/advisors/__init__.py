"""Advisors: from predictions, prices and carbon to advice."""
