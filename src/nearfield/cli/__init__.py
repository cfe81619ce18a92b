"""The command line: the only package that knows argparse, rich and the terminal."""
