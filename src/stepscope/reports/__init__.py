"""Draw reports as HTML, SVG, PNG and Markdown from the plain data of `views`."""
