"""Who lives, who is stuck, who is started again."""
