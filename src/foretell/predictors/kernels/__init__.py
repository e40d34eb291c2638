"""Which class of kernel each unit of work runs."""
