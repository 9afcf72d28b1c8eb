"""What `examples/cage2_workflows.py` is made of."""
