"""What the papers' ablations found here: in numbers, in words, as a figure."""
