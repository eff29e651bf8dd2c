/* names.h - names on the disk that several processes agree on. */
#ifndef HUTCH_CONFIG_NAMES_H
#define HUTCH_CONFIG_NAMES_H

#define TEMPLATE_BASE     "base"
#define TEMPLATE_SLIM     "slim"
#define TEMPLATE_HOST     "host"
#define TEMPLATE_ROOT     "root"      /* TEMPLATES/NAME/root is the root directory of NAME */
#define TEMPLATE_PROGRESS ".progress" /* TEMPLATES/NAME.progress: how far the builder is with NAME */

#endif
