"""Events that are posted to addresses of their owner, signed as the Standard Webhooks specification says.

records     endpoints, and the messages that wait for them: the outbox
events      what an event is on the wire
outbox      puts messages into the outbox, in the transaction of the event
host_key    the key of the host, of which the secrets of endpoints are made
signing     the form of secrets, and the signature
target      which addresses may be reached
exchange    one post: resolved once, bounded in time and size, no redirect followed
delivery    takes messages that are due from the outbox, and records how their post ended
service     `platform.webhooks`
"""
