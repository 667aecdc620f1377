"""Shows HTML and pictures that hold scripts."""
# fails:

# cell: double
from IPython.display import HTML, SVG, Javascript, Markdown, display

display(HTML("<b>bold</b><script>stolen()</script><img src=x onerror=stolen()>"))
display(SVG('<svg xmlns="http://www.w3.org/2000/svg" onload="stolen()"><script>stolen()</script></svg>'))
display(Javascript("stolen()"), Markdown("[x](javascript:stolen())<script>stolen()</script>"))

def double(x):
    return 2 * x
