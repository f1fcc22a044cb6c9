"""Any server of the chat-completion format as a backend: vLLM, SGLang, llama.cpp, Ollama, a hosted one."""

from modelyard.lazy import defer_modules

defer_modules(__name__, "address", "embedding_exchange", "prompt_exchange", "tokenizing", "transport")
