"""Side-by-side benchmarks of our broker and the Java broker; see docs/benchmarks.md."""
