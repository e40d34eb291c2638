"""Lab: public measurements of other GPUs, and what is fitted to them and judged by them."""
