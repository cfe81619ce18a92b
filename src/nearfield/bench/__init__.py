"""From a BenchConfig to BenchResults: protocols, plan, search, execution, results."""
