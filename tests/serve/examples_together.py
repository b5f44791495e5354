"""All examples in one application: they share models, and so batches."""

from examples.cascade import careful_line
from examples.document import document
from examples.moderation import moderate
from examples.quickstart import which_way_up

from dovetail import App

app = App(document, moderate, careful_line, which_way_up)
