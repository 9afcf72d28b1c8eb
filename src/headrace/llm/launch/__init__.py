"""The launcher of language-model runs: starts the components, watches, restarts and ends them, keeps the books. No torch."""
