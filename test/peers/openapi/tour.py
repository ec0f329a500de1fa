"""The tour with the client of openapi-python-client."""

import os
from io import BytesIO

from posthorn_client import AuthenticatedClient
from posthorn_client.api.deliveries import list_deliveries
from posthorn_client.api.identities import create_identity
from posthorn_client.api.messages import list_messages, receive_message, send_message
from posthorn_client.api.user import get_me
from posthorn_client.api.webhooks import create_webhook
from posthorn_client.models import CreateIdentityRequest, CreateWebhookRequest, CreateWebhookRequestEventsItem, SendMessageRequest
from posthorn_client.types import File

address = os.environ["ADDRESS"]
mail = b"From: Ada <ada@lovelace.example>\r\nSubject: Hello\r\n\r\nIs anybody there?\r\n"
client = AuthenticatedClient(base_url=os.environ["BASE_URL"], token=os.environ["API_KEY"])

me = get_me.sync(client=client)
identity = create_identity.sync(client=client, body=CreateIdentityRequest(value=address))
webhook = create_webhook.sync(
    client=client,
    body=CreateWebhookRequest(
        url=os.environ["HOOK"], events=[CreateWebhookRequestEventsItem("message.received")], owner_id=me.user_id
    ),
)
receive_message.sync(client=client, recipient=address, body=File(payload=BytesIO(mail)))
[message] = list_messages.sync(client=client, identity_id=identity.id)
assert message.subject == "Hello", message
[delivery] = list_deliveries.sync(client=client, message_id=str(message.id), webhook_id=webhook.id)
assert delivery.event == "message.received", delivery
sent = send_message.sync(
    client=client, body=SendMessageRequest(identity_id=identity.id, in_reply_to=str(message.id), text="Yes, we are.")
)
assert len(sent.sending.recipients) == 1, sent
print("the tour is done")
