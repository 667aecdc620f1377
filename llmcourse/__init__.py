"""From GPT-2 to Kimi K3: the package behind the course."""
