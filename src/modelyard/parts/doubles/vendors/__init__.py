"""What vendors refuse of a request, in the words and the shape of their errors."""
