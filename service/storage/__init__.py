"""Local disks, object stores and web servers behind one interface; uploads, mirrors, temporary folders."""
