"""How values are shown on a page: words for states and grades, charts as SVG."""
