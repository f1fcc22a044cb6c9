"""The pages of the dashboard: a function from a `View` to a `HtmlPage` for each."""
