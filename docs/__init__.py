"""Documentation: pages as Markdown, what draws their pictures, and the site made of them."""
