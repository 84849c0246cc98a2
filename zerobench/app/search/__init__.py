"""What is predicted, and how much fits: plans, and searches whose tries are runs, predicted or measured."""
