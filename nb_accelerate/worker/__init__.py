"""Worker side: what runs in the template and in the ranks that it forks."""
