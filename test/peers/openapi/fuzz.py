"""What schemathesis cannot send by itself: messages as bytes."""

import schemathesis


@schemathesis.serializer("message/rfc822")
def write_message(context, value) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
