"""What people see of a run: views of text, blocks and boards. Reading order: views, text, board."""
