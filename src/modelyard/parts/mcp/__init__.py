"""What a coding agent may ask and do here, by the Model Context Protocol over stdio: `modelyard mcp`."""
