from .huggingface import HuggingFaceTokenizer as HuggingFaceTokenizer
from .load import load_tokenizer as load_tokenizer
from .text_tokenizer import TextTokenizer as TextTokenizer
