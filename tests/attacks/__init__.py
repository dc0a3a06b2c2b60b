"""What attacks: servers, clients, sandboxes and rewards, each by a table that grows."""
