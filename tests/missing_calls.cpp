// Takes calls away that a filesystem may not have, below Python: preloaded, `TOKENLOOM_MISSING` names them.
//   flock: ENOLCK, as Lustre without `-o flock`; link: EPERM, as FAT;
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

}  // namespace

extern "C" {

int flock(int descriptor, int operation) {
  if (lacks("flock")) return refuse(ENOLCK);
  return next<int (*)(int, int)>("flock")(descriptor, operation);
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
