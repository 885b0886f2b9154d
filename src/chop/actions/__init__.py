"""What the commands do: whole jobs made of the rooms below."""
