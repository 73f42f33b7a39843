"""What other programs talk to over HTTP: the shell, which starts agents and hears from them."""
