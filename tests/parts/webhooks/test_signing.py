"""Signatures, against the vector of the specification and its own library."""

from datetime import UTC, datetime

import pytest

from modelyard.parts.webhooks.signing import secret_of, signature, signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'


def test_the_vector_of_the_specification() -> None:
    found = signature(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_has_the_form_of_the_specification() -> None:
    assert secret_of(bytes(32)) == "whsec_" + "A" * 43 + "="


def test_the_library_of_the_specification_accepts_either_secret() -> None:
    standardwebhooks = pytest.importorskip("standardwebhooks")
    now = datetime.now(UTC)
    secrets = [secret_of(bytes([at]) * 32) for at in (1, 2)]
    headers = signed_headers(secrets, "msg_1", int(now.timestamp()), BODY)
    for secret in secrets:
        assert standardwebhooks.Webhook(secret).verify(BODY.decode(), dict(headers)) == {"test": 2432232314}
    other = secret_of(b"\3" * 32)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(other).verify(BODY.decode(), dict(headers))
