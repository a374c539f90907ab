"""What of this machine, its disks, buckets and settings is fit for the work, and what is not."""
