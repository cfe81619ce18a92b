"""Pure readers of results: statistics, leaderboard, bias, lint, figures, ablations."""
