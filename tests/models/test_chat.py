from rlhf.models.chat import demonstration
from rlhf.models.replies import ReplyEncoder
from rlhf.models.tiny import byte_tokenizer
from rlhf.types import Message


def test_a_demonstration_trains_the_response_and_its_end_and_nothing_else() -> None:
    tokenizer = byte_tokenizer()
    segment = demonstration(
        tokenizer, [Message(role="user", content="52431")], "12345", replies=ReplyEncoder(tokenizer).token_ids
    )
    actions = segment.token_ids[segment.action_mask]
    assert tokenizer.decode(actions.tolist()) == "12345<|im_end|>"
    prompt = tokenizer.decode(segment.token_ids[~segment.action_mask].tolist())
    assert prompt == "<|im_start|>user\n52431<|im_end|>\n<|im_start|>assistant\n"
