// Takes calls away that a filesystem may not have, below Python: preloaded, `TOKENLOOM_MISSING` names them.
//   flock: ENOLCK, as Lustre without `-o flock`; tmpfile: O_TMPFILE gives EOPNOTSUPP, as NFS; link: EPERM, as FAT;
//   exchange: renameat2 gives EINVAL, as NFS.
#include <dlfcn.h>
#include <fcntl.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

bool lacks(const char* name) {
  const char* missing = std::getenv("TOKENLOOM_MISSING");
  return missing != nullptr && std::strstr(missing, name) != nullptr;
}

int refuse(int error) {
  errno = error;
  return -1;
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int open_with(const char* name, const char* path, int flags, unsigned mode) {
  if ((flags & O_TMPFILE) == O_TMPFILE && lacks("tmpfile")) return refuse(EOPNOTSUPP);
  return next<int (*)(const char*, int, unsigned)>(name)(path, flags, mode);
}

}  // namespace

extern "C" {

int flock(int descriptor, int operation) {
  if (lacks("flock")) return refuse(ENOLCK);
  return next<int (*)(int, int)>("flock")(descriptor, operation);
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const unsigned mode = va_arg(more, unsigned);
  va_end(more);
  return open_with("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const unsigned mode = va_arg(more, unsigned);
  va_end(more);
  return open_with("open64", path, flags, mode);
}

int link(const char* old_path, const char* new_path) {
  if (lacks("link")) return refuse(EPERM);
  return next<int (*)(const char*, const char*)>("link")(old_path, new_path);
}

int linkat(int old_folder, const char* old_path, int new_folder, const char* new_path, int flags) {
  if (lacks("link")) return refuse(EPERM);
  return next<int (*)(int, const char*, int, const char*, int)>("linkat")(old_folder, old_path, new_folder, new_path, flags);
}

int renameat2(int old_folder, const char* old_path, int new_folder, const char* new_path, unsigned flags) {
  if (flags != 0 && lacks("exchange")) return refuse(EINVAL);
  return next<int (*)(int, const char*, int, const char*, unsigned)>("renameat2")(old_folder, old_path, new_folder, new_path, flags);
}

}  // extern "C"
